"""The environments that ship with the library, and adapters of other projects' environments, as plugins."""
