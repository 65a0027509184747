"""Values to bytes and back, and frames of bytes that are checked as a whole."""

from .codec import Codec
from .frame import seal, unseal
from .registered import TypeRegistrationError

__all__ = ["Codec", "TypeRegistrationError", "seal", "unseal"]
