"""Layers: tensors in, tensors out; no task, no data set."""

from locotrans.nn.edge import EdgeConv, PointLayer, edge_products, max_mean_pool
from locotrans.nn.fusion import AttentionFusion
from locotrans.nn.heads import Head, HeadLayer, make_head
from locotrans.nn.invariants import VNInvariants, VNPooledInvariants
from locotrans.nn.lcrf import LCRF, to_frame
from locotrans.nn.norm import BatchNorm
from locotrans.nn.poses import equivariant_pose, point_pair_pose
from locotrans.nn.rpr import FrameConv, RelativePoseConv
from locotrans.nn.vn import VNBatchNorm, VNEdgeConv, VNLayer, VNProjection, vn_leaky_relu

__all__ = [
    "LCRF",
    "AttentionFusion",
    "BatchNorm",
    "EdgeConv",
    "FrameConv",
    "Head",
    "HeadLayer",
    "PointLayer",
    "RelativePoseConv",
    "VNBatchNorm",
    "VNEdgeConv",
    "VNInvariants",
    "VNLayer",
    "VNPooledInvariants",
    "VNProjection",
    "edge_products",
    "equivariant_pose",
    "make_head",
    "max_mean_pool",
    "point_pair_pose",
    "to_frame",
    "vn_leaky_relu",
]
