"""How messages travel: protobuf codec, frames on Unix sockets, gRPC streams, the job's token.

Not here: what a message means and what is done on receipt (core/).
"""
