"""Constants of the units that names carry as suffixes."""

MIB = 1 << 20
BITS_PER_BYTE = 8
