"""Every message of the membership protocol, as immutable records.

Three parties: **lighthouse** (decides), **agent** (one per node, relays and supervises), **worker**
(one training process). A worker sends to its agent only; the agent relays messages for the
lighthouse unchanged. Classes and fields have the names of ``protocol/ftrun.proto``, so that the
codec needs no table. A module for each direction. They are used through this package, which has all
their names: a new message is declared once.

Not here: the records of a quorum (quorum.py), each party's reaction to a message (worker/, agent/,
lighthouse/).
"""

from ftrun.core.messages.at_the_node import *
from ftrun.core.messages.at_the_registrar import *
from ftrun.core.messages.from_agent import *
from ftrun.core.messages.from_worker import *
from ftrun.core.messages.in_a_team import *
from ftrun.core.messages.loss import *
from ftrun.core.messages.to_agent import *
from ftrun.core.messages.to_worker import *
