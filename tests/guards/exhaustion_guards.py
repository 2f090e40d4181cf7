"""Guards that the attack on memory and patience has asked for (threats X)."""

from tests.guards.guard import guard

ROOM = "web/body_room.py"

EXHAUSTION_GUARDS = (
    guard(
        "X1",
        "who stands still has only so much waiting for him in the server",
        "web/call_routes.py",
        "line=self.lines.find(scope)",
        "line=None",
        test="web/test_answer_stream.py::test_all_who_stand_still_share_what_may_wait_in_the_server",
    ),
    guard(
        "X2",
        "a few readers have large reads",
        "outbound/read_memory.py",
        "        if self._large >= self._large_max:\n",
        "        if False:\n",
        test="outbound/test_read_memory.py::test_only_so_many_have_more_than_a_buffer_until_one_gives_it_back",
    ),
    guard(
        "X4",
        "reads of the catalog take turns",
        "web/catalog_turns.py",
        "asyncio.Semaphore(at_once)",
        "asyncio.Semaphore(at_once * 100)",
        test="web/test_catalog_turns.py::test_so_many_reads_are_worked_on_at_once",
    ),
    guard(
        "X1",
        "one address has half of the room for bodies",
        ROOM,
        "        if self.taken + size > self._bytes_max or mine > self._bytes_max // 2:\n",
        "        if self.taken + size > self._bytes_max:\n",
        test="web/test_body_room.py::test_one_address_never_has_more_than_half",
    ),
    guard(
        "X1",
        "a body of a call that is kept takes of the room",
        "gateway/cargo.py",
        "        body.hold(len(chunk))\n        chunks.append(chunk)\n",
        "        chunks.append(chunk)\n",
        test="gateway/test_cargo.py::test_what_is_kept_whole_is_held_and_what_streams_is_not",
    ),
    guard(
        "X2",
        "what stands between two chunks has a maximum",
        "outbound/answer.py",
        "            if self._between > self._limits.head_bytes:\n",
        "            if False:\n",
        test="outbound/test_answer.py::test_what_stands_between_chunks_has_the_limit_of_a_head",
    ),
    guard(
        "X3",
        "a few of the members that nobody knows are told",
        "web/json_body.py",
        "islice(unknown, UNKNOWN_MAX)",
        "islice(unknown, None)",
        test="web/test_json_body.py::test_members_that_nobody_knows_are_told_up_to_a_few",
    ),
    guard(
        "X3",
        "long bodies are handed on at a pace",
        "web/middleware.py",
        "            await self._held.wait_turn(self._clock())\n",
        "            pass\n",
        test="web/test_middleware.py::test_a_long_body_waits_for_its_turn_and_a_short_one_does_not",
    ),
    guard(
        "X4",
        "sockets are asked for before anybody connects",
        "web/server.py",
        "        raise_open_files()\n",
        "        pass\n",
        test="web/test_open_files.py::test_a_server_asks_before_it_listens",
    ),
)
