"""The commands of `paci-lab`, one file each."""
