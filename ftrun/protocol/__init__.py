"""How messages are sent: protobuf codec, frames on Unix sockets, gRPC streams, the job's token.

The simple path is short: ``records`` and ``codec`` turn a message into bytes, ``frames`` carries it
between agent and worker, ``rpc`` and ``serving`` between agent and lighthouse. Read these first.

The other encoding modules are for jobs of more than 100 replica groups. At a death the lighthouse
sends each agent the next quorum, and each worker reports the last one. In full that would be
O(groups²) bytes, and as much decoding. So ``quorums`` sends only what has changed, ``broadcast``
encodes one message for all agents, ``shallow`` and ``shared_records`` decode equal bytes once, and
``streams`` writes its own varints to send messages in batches. A small job would work as well
without them.

Not here: what a message means and what is done on receipt (core/).
"""
