"""Certificates: is a network, ours or yours, as invariant as it says, and where is it worst?"""

from locotrans.certify.checks import KEEPS, PROPERTIES, TOLERANCES, certify
from locotrans.certify.result import Certificate, Row

__all__ = ["KEEPS", "PROPERTIES", "TOLERANCES", "Certificate", "Row", "certify"]
