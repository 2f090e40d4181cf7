"""Records every TCP connection that a process of this network opens, and every datagram that it sends: the
destination of each on the loopback wire."""

import asyncio
import ipaddress
import socket
from collections import Counter

_ETH_P_ALL = 0x0003
_TCP, _SYN, _ACK = 6, 0x02, 0x10
_UDP, _NAMES = 17, 53
_OUTGOING = 4  # each packet on loopback is seen twice; this is the way in which it leaves

Destination = tuple[str, int]


class WireTap:
    """`dialled`, `asked`: the number of connections and of datagrams to each address and port since its start."""

    def __init__(self) -> None:
        self.dialled: Counter[Destination] = Counter()
        self.asked: Counter[Destination] = Counter()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(_ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024 * 1024)
        self._socket.setblocking(False)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        while True:
            try:
                packet, address = self._socket.recvfrom(2048)
            except BlockingIOError:
                return
            if address[2] != _OUTGOING:
                continue
            if begun := read_syn(packet):
                self.dialled[begun] += 1
            elif asked := read_question(packet):
                self.asked[asked] += 1

    def close(self) -> None:
        self._read()  # connections before the first read count too
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


def read_syn(packet: bytes) -> Destination | None:
    """Where a packet goes that begins a TCP connection; None for any other."""
    start, protocol, to = _read_head(packet)
    if protocol != _TCP or packet[start + 13] & (_SYN | _ACK) != _SYN:
        return None
    return to, int.from_bytes(packet[start + 2 : start + 4], "big")


def read_question(packet: bytes) -> Destination | None:
    """Where a datagram goes that is no name server's answer."""
    start, protocol, to = _read_head(packet)
    if protocol != _UDP or int.from_bytes(packet[start : start + 2], "big") == _NAMES:
        return None
    return to, int.from_bytes(packet[start + 2 : start + 4], "big")


def _read_head(packet: bytes) -> tuple[int, int, str]:
    """Where the payload starts, its protocol, and whom it is for. IPv4 and IPv6 without extension headers."""
    if packet[0] >> 4 == 4:
        return (packet[0] & 15) * 4, packet[9], str(ipaddress.ip_address(packet[16:20]))
    return 40, packet[6], str(ipaddress.ip_address(packet[24:40]))
