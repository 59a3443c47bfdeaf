"""Model architectures, their files and devices, and the policies that ship with the package."""
