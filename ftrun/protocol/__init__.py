"""How messages travel: protobuf codec, frames on Unix sockets, gRPC streams, the job's token.

The plain path is short: ``records`` and ``codec`` turn a message into bytes, ``frames`` carries it
between agent and worker, ``rpc`` and ``serving`` between agent and lighthouse. Read these first.

Everything else about encoding is there for jobs of more than 100 replica groups. At a death the
lighthouse sends each agent the next quorum, and each worker reports the last one: in full that is
O(groups²) bytes, and as much decoding. So ``quorums`` sends only what has changed, ``broadcast``
encodes one message for all agents, ``shallow`` and ``shared_records`` decode equal bytes once, and
``streams`` writes its own varints to send messages in batches. Without them a small job works as
well.

Not here: what a message means and what is done on receipt (core/).
"""
