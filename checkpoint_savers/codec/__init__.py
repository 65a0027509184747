"""Values to bytes and back, and frames of bytes that are checked as a whole."""

from ..errors import TypeRegistrationError
from .codec import Codec
from .frame import seal, unseal

__all__ = ["Codec", "TypeRegistrationError", "seal", "unseal"]
