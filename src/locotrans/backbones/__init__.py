"""Backbones: points in, features of every point out, one complete file per architecture."""

from locotrans.backbones.dgcnn import DGCNN
from locotrans.backbones.pointnet import PointNet
from locotrans.backbones.protocol import Backbone
from locotrans.backbones.vn_dgcnn import VNDGCNN, VNFeatures

__all__ = ["DGCNN", "VNDGCNN", "Backbone", "PointNet", "VNFeatures"]
