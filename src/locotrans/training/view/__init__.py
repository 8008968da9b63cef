"""`locotrans view`: a page that shows a cloud, its frames, and what networks say of it as it turns.

The page is one HTML file with its own script and no other part. Served from this machine it asks
the networks for every pose; saved, it holds their answers for some poses and needs no server.
"""

from locotrans.training.view.networks import ViewedNetwork, load_viewed
from locotrans.training.view.page import saved_page
from locotrans.training.view.scenes import Scene, Viewer
from locotrans.training.view.server import ViewServer, serve
from locotrans.training.view.show import view

__all__ = [
    "Scene",
    "ViewServer",
    "ViewedNetwork",
    "Viewer",
    "load_viewed",
    "saved_page",
    "serve",
    "view",
]
