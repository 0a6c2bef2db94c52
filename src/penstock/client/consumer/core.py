"""One consumer without I/O: what its workers do next, and how they are told how it went.

`work` is a generator for each worker and `keep` one for the whole consumer. They yield steps:

    Call(commands)   send them in one go, and answer with their replies; an error stands in the place of a reply
    Wait(seconds)    come back then, or sooner if `wake` was called
    WorkerShare      process its messages, and say of each how it went

The drivers (sync.py, aio.py) carry the steps out. They hold a lock while a generator runs, and not while they wait, so
everything here is used by one thread at a time.

Messages are fetched with RESERVE: no attempt is counted for them, and their time does not run. Just before a share of
them is processed, TEXTEND ... BEGIN counts the attempt; it travels with the TACK of the messages before and with the
next TREAD, so there is one round trip for a share. All settlements name the token of their delivery: a member that was
too slow changes nothing for the member that has the message now.

Rejected: a thread that fetches while bodies run. A round trip is short beside what is fetched at a time, and a fetched
message that waits in a queue is one that an idle member could process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from itertools import takewhile
from operator import itemgetter
from time import monotonic
from typing import Any

from penstock.client.consumer.counts import Counts
from penstock.client.consumer.delivered import Row
from penstock.client.consumer.holdings import Holdings, Lease
from penstock.client.consumer.options import ConsumerSettings
from penstock.client.consumer.orders import NOT_GIVEN_UP, Order, Orders
from penstock.client.consumer.outages import may_pass
from penstock.client.consumer.pace import Pace
from penstock.client.consumer.queues import Lanes, PlainQueue, Queue
from penstock.client.consumer.sender import Sender
from penstock.client.consumer.steps import Call, Wait
from penstock.client.consumer.worker_share import WorkerShare

_logger = logging.getLogger("penstock.consumer")

STUCK = 0.25
"""Seconds after which messages that wait for a slow body are given back."""
TICK = 0.1
"""Seconds between two looks at what is held."""


_ASK_AGAIN = 0.1
"""Seconds after which a server that stalled has also executed what stood in the buffers of lost connections."""

Step = Call | Wait | WorkerShare
Steps = Generator[Step, Any, None]


class ConsumerCore:
    """See the top of this file."""

    def __init__(self, settings: ConsumerSettings, clock: Callable[[], float] = monotonic) -> None:
        self.settings = settings
        self.counts = Counts()
        self.holdings = Holdings()
        self.orders = Orders(settings, self.holdings.leases)
        self._sender = Sender(settings, self.counts, clock)
        self.pace = Pace(settings.count)
        self.queue: Queue = Lanes() if settings.ordered_by else PlainQueue()
        self.retries_here = settings.ordered_by is not None
        self.workers = 1
        self.batch = 0
        """How many messages the body takes at once; 0: one, without a list."""
        self.batch_ms = 0
        self.is_stopping = False
        self.wake: Callable[[], None] = lambda: None
        """Called when workers that wait should look again; set by the driver."""
        self._clock = clock
        self._stop_at: float | None = None
        self._is_over = False
        self._shares: set[WorkerShare] = set()
        self._finished: list[Row] = []  # done, and the server was not told yet
        self._manual: list[Row] = []  # the body has returned, and has not acknowledged them
        self._begun: set[int] = set()  # offsets of messages that were begun, and then put back into their lane
        self._lost_tags: set[Any] = set()  # tags of which a message is to be fetched again before any other
        self._is_fetching = False
        self._sender.has_lost_read = self.retries_here  # by a predecessor, perhaps
        self._idle = 0
        self._taken = clock()  # when a worker last came for messages

    # -- the messages that are held -------------------------------------------------------------------------------

    def settle_failure(self, row: Row, error: BaseException) -> None:
        """Give a message back, or up, that a body failed on."""
        delay = self.settings.after(error, row[4] + 1)
        self.holdings.settle(row, error if delay is None else delay)

    @property
    def is_waiting(self) -> bool:
        """Whether the server does not answer."""
        return self._sender.outages.is_on

    @property
    def held(self) -> int:
        """How many messages this consumer holds."""
        return len(self.holdings)

    def stop(self) -> None:
        """Let workers end after the message at hand."""
        if not self.is_stopping:
            grace = self.settings.grace_ms
            self._stop_at = None if grace is None else self._clock() + grace / 1000
            self.is_stopping = self._sender.is_stopping = True
            self._sender.stop_at = self._stop_at
        self.wake()

    def grace_left(self) -> float | None:
        """Seconds that bodies may go on after `stop`; None: for ever."""
        return None if self._stop_at is None else max(self._stop_at - self._clock(), 0.0)

    def abandon(self) -> None:
        """Nothing is left that could use this consumer: let the keeper end. The server gives out again what is held."""
        self.is_stopping = self._is_over = True
        self.wake()

    # -- a worker -------------------------------------------------------------------------------------------------

    def work(self) -> Steps:
        """The steps of one worker, until the consumer is stopped."""
        while not self.is_stopping:
            if self._sender.has_lost_read and not self._is_fetching:
                yield from self._find_order()
            share = self._take()
            reads = self._reading(bool(share))
            orders = self._settlements()
            if not share and reads is None:
                if orders:
                    yield from self._sender.send(orders)
                else:
                    yield from self._rest()
                continue
            fresh = [row for row in share if row[0] not in self._begun] if self._begun else share
            begins = self.orders.begin(fresh)
            if reads is not None:
                self._is_fetching = True
            sent = self._clock()
            try:
                yield from self._sender.send([*orders, *begins, *([] if reads is None else [reads])])
            finally:
                if reads is not None:
                    self._is_fetching = False
                    self.wake()
            if share:  # else it waited for messages
                self.pace.note_trip(self._clock() - sent)
            if reads is not None:
                self._add(reads.reply)
            if share:
                lost = yield from self._check(begins)
                yield from self._process(self._still_held(share) if lost else share, share)
        if orders := self._settlements():
            yield from self._sender.send(orders)

    def _take(self) -> list[Row]:
        now = self._taken = self._clock()
        if self.batch:
            is_due = len(self.queue) >= self.batch or now >= self._batch_at(now)
            return self.queue.take(self.batch, now) if is_due else []
        return self.queue.take(1 if self.settings.max_attempts == 1 else self.pace.share(), now)

    def _batch_at(self, now: float) -> float:
        """When a batch is processed although it is not full."""
        row = self.queue.following(now)
        return (now if row is None else self.holdings.leases[row[0]].fetched) + self.batch_ms / 1000

    def _reading(self, has_work: bool) -> Order | None:
        """A TREAD, if more should be fetched now."""
        if self._is_fetching:
            return None
        ready = self.queue.ready()
        window = max(self.pace.window(self.workers), self.batch)
        if has_work and 2 * ready >= window:
            return None
        held = len(self.holdings) if self.settings.manual else len(self.queue)
        idle = self._idle + (not has_work)
        count = min(max(idle, window - ready), max(self.settings.count, self.batch) - held)
        if count <= 0:
            return None
        return self.orders.read(count, None if has_work else self._longest_block())

    def _find_order(self) -> Steps:
        """Before new messages are read into lanes: take over those that a predecessor, or a read without a reply, has
        left pending. New ones would overtake them. Messages of other members are waited for.
        """
        self._is_fetching = True
        is_told = is_sure = False
        found: list[Row] = []
        try:
            while not self.is_stopping:
                pending, time = self.orders.ask_pending()
                yield from self._sender.send([pending, time])
                left = [row for row in pending.reply or () if not self.holdings.has_all(row[0], row[1])]
                if not left:
                    if is_sure:
                        self._sender.has_lost_read = False
                        self._lost_tags.clear()
                        return
                    is_sure = True
                    yield Wait(_ASK_AGAIN)
                    continue
                if time.reply is None:
                    return  # the consumer stops
                is_sure = False
                seconds, microseconds = map(int, time.reply)
                wait = max(row[4] for row in left) / 1000 - seconds - microseconds / 1e6
                if wait <= 0:
                    again = self.orders.read_again(sum(row[1] - row[0] + 1 for row in left))
                    yield from self._sender.send([again])
                    found += self._hold(again.reply)
                    if all(self.holdings.has_all(row[0], row[1]) for row in left):  # else an earlier one was not due
                        found = self._enqueue(found)
                    continue
                found = self._enqueue(found)
                if not is_told:
                    is_told = True
                    _logger.info("messages of %r are pending elsewhere; they come before new ones", self.settings.key)
                yield Wait(min(wait + 0.01, 1.0))
        finally:
            self._is_fetching = False
            self._enqueue(found)
            self.wake()

    def _longest_block(self) -> int:
        """Milliseconds that a read may wait, so that it does not outlast a retry or a batch that waits to be full."""
        block, now = self.settings.block_ms, self._clock()
        if (at := self.queue.next_at()) is not None:
            block = min(block, int((at - now) * 1000))
        if self.batch and len(self.queue):
            block = min(block, int((self._batch_at(now) - now) * 1000))
        return max(block, 1)

    def _rest(self) -> Steps:
        """Wait until another worker has fetched something, or a lane is free."""
        at = self.queue.next_at()
        self._idle += 1
        try:
            longest = self.settings.block_ms / 1000
            yield Wait(longest if at is None else min(max(at - self._clock(), 0.001), longest))
        finally:
            self._idle -= 1

    def _add(self, reply: Any) -> None:
        """Take what a read fetched. What comes behind a lost message goes back, and is fetched together with it."""
        rows = self._hold(reply)
        if self._lost_tags:
            self._give_back([row for row in rows if row[1] in self._lost_tags])
            rows = [row for row in rows if row[1] not in self._lost_tags]
        self._enqueue(rows)

    def _hold(self, reply: Any) -> list[Row]:
        """Hold what was delivered; the messages that are new."""
        if not reply or len(reply) < 2:
            return []
        token, *rows = reply
        now = self._clock()
        fresh = self.holdings.add(Lease(token, now + self.settings.reserve_ms / 1000, now), rows)
        self.counts.fetched += len(fresh)
        return fresh

    def _enqueue(self, rows: list[Row]) -> list[Row]:
        """Let workers begin messages; those that are left, none."""
        if rows:
            if self.retries_here:
                rows.sort(key=itemgetter(0))  # retries come in the order in which they were due
            self.queue.add(rows)
            self.wake()
        return []

    def _check(self, begins: Iterable[Order]) -> Generator[Step, Any, set[int]]:
        """Mark what was begun; the offsets of messages that other members have now."""
        lost: set[int] = set()
        for order in begins:
            if order.reply is None:  # the consumer stops, and the server does not answer
                lost |= {row[0] for row in order.rows}
                self.holdings.forget(order.rows)
                continue
            if order.lease is not None:  # and not that of messages that were delivered with them and wait
                self.holdings.renew(order.rows, order.lease.extended(self._clock() + self.settings.retry_ms / 1000))
            if order.reply < len(order.rows):
                lost |= yield from self._find_lost(order.rows, begun=False)
        return lost

    def _still_held(self, share: list[Row]) -> list[Row]:
        """The messages of a share without those that were lost. In a lane those behind one that was lost go back."""
        if not self.retries_here:
            return self.holdings.open_ones(share)
        held = list(takewhile(self.holdings.is_open, share))
        self._give_back(share[len(held) :])
        return held

    def _find_lost(self, rows: list[Row], begun: bool = True) -> Generator[Step, Any, set[int]]:
        """Ask for each message whether it is still held here, and forget those that are not."""
        questions = [order for row in self.holdings.open_ones(rows) for order in self.orders.extend([row])]
        yield from self._sender.send(questions, once=True)
        lost: list[Row] = []
        for question in questions:
            (row,) = question.rows
            lease = self.holdings.leases.get(row[0])
            is_same = lease is not None and question.lease is not None and lease.token == question.lease.token
            if question.reply == 0 and is_same and self.holdings.is_open(row):
                lost.append(row)
        self.holdings.forget(lost)
        offsets = {row[0] for row in lost}
        self._begun -= offsets
        if lost:
            if begun:
                self._sender.note_stale(len(lost))
            else:
                self.counts.given_back += len(lost)
            if self.retries_here:
                self._fetch_again({row[1] for row in lost})
        return offsets

    def _fetch_again(self, tags: set[Any]) -> None:
        """Give back what waits in lanes of which a message was lost: it is fetched again together with that."""
        self._lost_tags |= tags
        behind = self.queue.remove_tags(tags)
        for share in self._shares:
            if share.rows[0][1] in tags:
                behind += share.take_back()
        self._give_back(behind)
        self._sender.has_lost_read = True

    def _process(self, rows: list[Row], taken: list[Row]) -> Steps:
        if rows:
            share = WorkerShare(self, rows, self._clock)
            if self.settings.manual:
                share.done = self._manual.append
            self._shares.add(share)
            try:
                yield share
            finally:
                self._shares.discard(share)
                self._finished += share.take_finished()
            if share.ran:
                self.pace.note(self._clock() - share.began, share.ran)
            self._put_back(list(share.waiting))
            if share.failures:
                yield from self._retry(share.failures)
        self.queue.finish(taken)

    def _put_back(self, unprocessed: list[Row]) -> None:
        if not unprocessed:
            return
        if self.is_stopping or not self.queue.put_back(unprocessed):
            self._give_back(unprocessed)
        else:
            self._begun.update([row[0] for row in unprocessed])

    def _give_back(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if self.holdings.is_open(row):
                self.counts.given_back += 1
                self.holdings.settle(row, 0)

    def _retry(self, failures: list[tuple[Row, BaseException]]) -> Steps:
        """Try messages of a lane again, or give them up. Their attempts are counted here: the server counts one a
        delivery. The next message of the lane begins when the server has taken what is given up.
        """
        failures = [failure for failure in failures if self.holdings.is_open(failure[0])]  # else others have them now
        delays = [self.settings.after(error, row[4] + 1) for row, error in failures]
        given_up = [self.orders.give_up(*failures[at]) for at, delay in enumerate(delays) if delay is None]
        yield from self._sender.send(given_up)
        self.holdings.forget([row for order in given_up if order.reply is not None for row in order.rows])
        for at in reversed(range(len(failures))):  # each goes before the others
            row, delay = failures[at][0], delays[at]
            if not self.holdings.is_open(row):
                continue
            if self.is_stopping:
                self.holdings.settle(row, 0)
                continue
            self._begun.add(row[0])
            row[4] += 1
            self.queue.retry(row, self._clock() + (NOT_GIVEN_UP if delay is None else delay) / 1000)

    # -- the keeper -----------------------------------------------------------------------------------------------

    def keep(self) -> Steps:
        """The steps of the thread or task that extends leases, and settles what a slow body would hold up."""
        while not self._is_over:
            yield Wait(min(TICK, self.settings.retry_ms / 4000))
            if self._is_over:
                return
            try:
                self._free()
                if orders := self._settlements():
                    yield from self._sender.send(orders)
                yield from self._extend()
            except Exception as error:
                if not may_pass(error):
                    raise
                # The patience is over. A worker meets the same server at its next command, and its caller is told.

    def _extend(self) -> Steps:
        """Extend leases that have come to a third of their time, of messages that are begun. In lanes of all: they must
        come due in the order of their offsets if this process dies.
        """
        now, holdings = self._clock(), self.holdings
        self._manual = holdings.open_ones(self._manual)
        if self.retries_here:
            held = list(holdings.rows.values())
        else:
            held = [*self._manual, *(row for share in self._shares for row in share.rows)]
        before = now + self.settings.retry_ms * 2 / 3000
        orders = self.orders.extend([row for row in holdings.open_ones(held) if holdings.leases[row[0]].due < before])
        yield from self._sender.send(orders, once=True)
        for order in orders:
            if order.reply is not None and order.lease is not None:
                self.counts.extended += order.reply
                # Those that were not extended have their own lease from now on.
                holdings.renew(order.rows, order.lease.extended(now + self.settings.retry_ms / 1000))
                if order.reply < len(order.rows):
                    yield from self._find_lost(order.rows)

    def _free(self) -> None:
        """Give back what waits for slow bodies."""
        now = self._clock()
        if now - self._taken > STUCK and not self._is_fetching:  # else a worker fills a batch
            self._give_back(self.queue.remove_waiting())
        if self.retries_here:
            return  # the order of a tag would be lost
        limit = self.settings.max_attempts
        for share in self._shares:
            # Their attempt is counted: those that have few left wait.
            is_stuck = share.seconds_without_progress(now) > STUCK - TICK
            if is_stuck and (limit is None or share.rows[0][4] + 2 < limit):
                self._give_back(share.take_back())

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> Steps:
        """Give back everything; after the last worker has ended, or the grace."""
        self.is_stopping = self._sender.is_stopping = self._is_over = True
        self.wake()
        self._give_back([*self.queue.clear(), *self.holdings.rows.values()])
        if orders := self._settlements():
            yield from self._sender.send(orders)

    # -- commands -------------------------------------------------------------------------------------------------

    def _settlements(self) -> list[Order]:
        """The commands for everything that was settled since the last time."""
        done, self._finished = self._finished, []
        for share in self._shares:
            done += share.take_finished()
        orders, self._sender.interrupted = self._sender.interrupted, []
        done = self.holdings.open_ones(done)
        settled = self.holdings.take_settled(done)
        if done or settled:
            orders += self.orders.settle(done, settled)
            self.holdings.forget(done)
            self.holdings.forget([row for row, _ in settled])
            if self._begun:
                self._begun.intersection_update(self.holdings.rows)
        return orders
