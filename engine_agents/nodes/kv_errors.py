"""Everything that can go wrong between two nodes' KV stores.

KvError
├── BadFrameError             the peer does not speak this wire
├── FingerprintMismatchError  the two nodes' KV cannot be exchanged
├── LeaseUnknownError         expired, released, or never granted
├── LeaseBusyError            another connection reads this lease
├── BlockGoneError            the lease does not cover a wanted block
├── ChecksumMismatchError     a payload was damaged on its way
├── RelayRefusedError         the WAN relay would not connect
├── PeerLostError             the connection could not be made or ended early
├── PullStalledError          nothing arrived for too long
└── StoreFullError            pinned blocks leave no room for an arriving one
"""


class KvError(Exception):
    """A KV exchange failed."""


class BadFrameError(KvError):
    """The peer sent bytes that are not a frame of this wire."""


class FingerprintMismatchError(KvError):
    """The peer's model or KV layout is another one."""


class LeaseUnknownError(KvError):
    """The lease has expired, was released, or never existed."""


class LeaseBusyError(KvError):
    """The lease has a reader already."""


class BlockGoneError(KvError):
    """The lease does not cover a wanted block."""


class ChecksumMismatchError(KvError):
    """A block's payload does not match its checksum."""


class RelayRefusedError(KvError):
    """The WAN relay refused to connect to the target."""


class PeerLostError(KvError):
    """The connection could not be made, or ended before all was said."""


class PullStalledError(KvError):
    """The peer sent nothing for longer than a pull may stall."""


class StoreFullError(KvError):
    """Pinned blocks leave no room for another one."""
