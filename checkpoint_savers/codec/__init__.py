"""Encodes values to bytes and decodes them, and seals bytes in frames with a checksum."""

from ..errors import TypeRegistrationError
from .codec import Codec
from .frame import seal, unseal

__all__ = ["Codec", "TypeRegistrationError", "seal", "unseal"]
