"""Sees every TCP connection that anybody in this network begins: the destination of each SYN on the loopback wire."""

import asyncio
import ipaddress
import socket
from collections import Counter

_ETH_P_ALL = 0x0003
_TCP, _SYN, _ACK = 6, 0x02, 0x10
_OUTGOING = 4  # each packet on loopback is seen twice; this is the way in which it leaves

Destination = tuple[str, int]


class WireTap:
    """`dialled`: how often each address and port was dialled since it began."""

    def __init__(self) -> None:
        self.dialled: Counter[Destination] = Counter()
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
            if address[2] == _OUTGOING and (begun := read_syn(packet)):
                self.dialled[begun] += 1

    def close(self) -> None:
        self._read()  # what nobody has asked for yet was dialled all the same
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


def read_syn(packet: bytes) -> Destination | None:
    """Where a packet goes that begins a TCP connection; None for any other. IPv4 and IPv6 without extension headers."""
    version = packet[0] >> 4
    if version == 4 and packet[9] == _TCP:
        start, to = (packet[0] & 15) * 4, packet[16:20]
    elif version == 6 and packet[6] == _TCP:
        start, to = 40, packet[24:40]
    else:
        return None
    if packet[start + 13] & (_SYN | _ACK) != _SYN:
        return None
    return str(ipaddress.ip_address(to)), int.from_bytes(packet[start + 2 : start + 4], "big")
