"""Runtime checks of annotations, with the numeric tower of PEP 484: an ``int`` is a ``float``."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
