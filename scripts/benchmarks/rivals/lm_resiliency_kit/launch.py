"""torchrun with lm-resiliency's rendezvous: ``launch.py ARGUMENTS`` is ``torchrun ARGUMENTS``.

In 0.2.0 the entry point for torchrun names a function that torch calls without the argument it
needs, so the rendezvous is not registered and no job starts. The right function is in the package.
"""

from lm_resiliency.integrations.torchrun import get_rendezvous_handler_creator
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.run import main

NAME = "lm_resiliency"

if __name__ == "__main__":
    rendezvous_handler_registry.register(NAME, get_rendezvous_handler_creator())
    main()
