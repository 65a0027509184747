"""A module of a package: it can only be imported as one."""

from .outer import builder

graph = builder.compile(name="parcel")
