"""What takes the place of OmegaConf for `small_skyrl`."""


class OmegaConf:
    create = dict
