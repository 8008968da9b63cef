"""Backbones: points in, features of points out, one complete file per architecture."""

from locotrans.backbones.dgcnn import DGCNN
from locotrans.backbones.pct import PCT
from locotrans.backbones.pointmlp import PointMLP
from locotrans.backbones.pointnet import PointNet
from locotrans.backbones.pointnet2 import PointNet2
from locotrans.backbones.protocol import Backbone, PatchBackbone
from locotrans.backbones.vn_dgcnn import VNDGCNN, VNFeatures

__all__ = [
    "DGCNN",
    "PCT",
    "VNDGCNN",
    "Backbone",
    "PatchBackbone",
    "PointMLP",
    "PointNet",
    "PointNet2",
    "VNFeatures",
]
