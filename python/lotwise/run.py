"""A run's handle: begin one from a frame, take one up by its id, and ask it how it stands.

A run is the ledger's; the handle holds no state of its own that matters. Closing the process loses nothing: the same
call, or `open_ledger(path).resume(run_id)`, goes on where the ledger says things are.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from lotwise import borrow, engine, join, lifecycle, owner, watch
from lotwise import lots as evidence
from lotwise.call import Call, lane, policy_of
from lotwise.clock import Clock, SystemClock
from lotwise.cost import Prices
from lotwise.errors import PriceUnknown, RunStopped, Unreachable, UnreachableAnswers
from lotwise.executors import Tier
from lotwise.executors.base import BatchExecutor, KeepsOptions, StreamExecutor
from lotwise.job import Job, Lane, Options, Snapshot
from lotwise.key import KEY_VERSION, spec_from_json, spec_json
from lotwise.ledger import borrowed as borrowed_book
from lotwise.ledger import requests as request_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.files import DATABASE, locate
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import RequestState
from lotwise.progress import Reporter, reporter
from lotwise.request import Spec
from lotwise.schema import Schema
from lotwise.shown import shown as what_rows_show
from lotwise.status import Status, missing_of, row_of
from lotwise.validate import Validator


class Run:
    """One call's set of requests, by its id in a ledger.

    Made by `submit`, by `resume`, and carried by the errors of a stopped run.
    """

    def __init__(
        self,
        job: Job,
        *,
        reporter: Reporter,
        call: Call | None = None,
        frame: pl.DataFrame | None = None,
        keys: pl.Series | None = None,
    ) -> None:
        self._job, self._reporter = job, reporter
        self._call, self._frame, self._keys = call, frame, keys
        self._worker: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def id(self) -> str:
        """The run's id, 16 hex characters."""
        return self._job.run_id

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run is written down in."""
        return self._job.ledger

    def __repr__(self) -> str:
        return f"<lotwise.Run {self.id} of {self._job.spec.model_name}, {self._job.n_requests:,} requests>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    # --- beginning ---------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, call: Call, frame: pl.DataFrame, *, clock: Clock | None = None) -> Run:
        """Write down what a frame asks for, and return the run that expects it. Nothing is sent yet."""
        clock = clock or SystemClock()
        is_new = not (locate(call.ledger) / DATABASE).exists()
        ledger = Ledger.open(call.ledger)
        shown = reporter(call.progress)
        shown.began(ledger.path, new=is_new, paid=call.executor.paid, warnings=call.warnings)
        now = clock.now()
        enrolled = engine.enroll(ledger, call.spec_digest, call.contents(frame), now)
        run_id = engine.new_run_id()
        job_id = engine.job_digest(call.spec_digest, enrolled.manifest, reuse=call.reuse)
        n_taken = 0
        if call.reuse == "compatible":
            found = borrow.find(ledger, call.spec, call.executor, call.validator, call.contents(frame))
            borrow.take(ledger, found, call.validator, run_id, now)
            n_taken = borrowed_book.taken(ledger, enrolled.manifest["key"], call.validator.digest).len()
        grouped = evidence.rows_of(enrolled.keys, evidence.labels_of(frame, call.accept))
        family = evidence.Family.of(
            job=job_id,
            validator=call.validator.digest,
            run=run_id,
            accept=call.accept,
            said=call.accept_said,
            rows=grouped,
        )
        evidence.refuse_other_rule(ledger, family)
        job = Job(
            ledger=ledger,
            lane=Lane(executor=call.executor, prices=call.prices),
            open_lane=call.lane,
            spec=call.spec,
            spec_digest=call.spec_digest,
            validator=call.validator,
            validator_digest=call.validator.digest,
            run_id=run_id,
            job_id=job_id,
            n_requests=enrolled.manifest.height,
            n_skipped=enrolled.n_skipped,
            clock=clock,
            owner="",
            is_gone=owner.gone,
            options=call.options,
            policy=call.policy,
            budget_usd=call.budget_usd,
            poll_s=call.poll_s,
            deadline=None if call.deadline is None else at(call.deadline, now),
            lots=family,
            canary=call.canary(enrolled.manifest.height - n_taken),
        )
        if job.canary is not None:
            watch.begin(job, job.canary)
        stopped = run_book.stop_reason(ledger, job.job_id)
        run_book.begin(
            ledger,
            run={
                "id": job.run_id,
                "name": call.name,
                "spec": call.spec_digest,
                "validator": call.validator.digest,
                "job": job.job_id,
                "tier": call.tier,
                "options": json.dumps(
                    {
                        "prices": None if call.prices is None else call.prices.to_json(),
                        "lots": family.to_json(),
                        "options": call.options.kept(),
                        **_executor_options(job),
                        **_deadline_options(job),
                    }
                ),
                "prompt": call.prompt,
                "n_rows": frame.height,
                "n_skipped": enrolled.n_skipped,
                "n_requests": enrolled.manifest.height,
                "budget_usd": call.budget_usd,
            },
            spec={
                "digest": call.spec_digest,
                "model": call.spec.model_name,
                "body": spec_json(call.spec),
                "key_version": KEY_VERSION,
            },
            validator={"digest": call.validator.digest, "body": _portable(call.validator)},
            manifest=enrolled.manifest,
            now=now,
        )
        evidence.name(ledger, family, grouped, now)
        run = cls(job, reporter=shown, call=call, frame=frame, keys=enrolled.keys)
        if call.retry:
            engine.judge_stored(job)  # what only other rules have judged may be valid, and is not asked again then
            run._reopen(call.retry)
        elif stopped is not None and _stands(stopped[1], call.options):
            job.halt(stopped[1])  # a stop for bad answers holds until the call says otherwise
        return run

    def _reopen(self, words: tuple[str, ...]) -> None:
        """Open another attempt of what has ended in one of the named states or with one of the named codes."""
        missing = run_book.missing(self.ledger, self.id, self._job.validator_digest)
        origins = {
            RequestState.ANSWERED.value: "invalid",
            RequestState.REFUSED.value: "refused",
            RequestState.DEAD_LETTERED.value: "dead_lettered",
        }
        for origin, word in origins.items():
            ended = missing.filter(sending_state=origin)
            if word not in words:
                ended = ended.filter(pl.col("reason").is_in(list(words)))
            if ended.height:
                request_book.reopen(self.ledger, ended["key"], origin, f"retry:{word}")

    # --- taking up ---------------------------------------------------------------------------------------------

    @classmethod
    def resume(
        cls,
        ledger: Ledger,
        run_id: str,
        *,
        options: Options | None = None,
        progress: bool | None = None,
        poll_s: float | None = None,
        clock: Clock | None = None,
        collect_only: bool = False,
    ) -> Run:
        """Take a run up in this process: poll what is in flight, send what is missing, judge what comes.

        With `collect_only`, and for a canceled run, what is in flight is collected and nothing is sent. The options
        that the run was begun with, those of its executor included as far as they may be written down, hold where
        `options` sets nothing else.

        A schema that is a Pydantic model, and a `check=` that is a function, live in the caller's code; without them
        answers are recorded as they come and judged by the next `map` of the same call.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        LotwiseError
            Whatever `Executor.check` refuses, where something may be sent: the ledger is then as it was.
        """
        row = row_of(ledger, run_id)
        told = json.loads(row["options"])
        options = (options or Options()).over(told.get("options", {}))
        options = replace(options, executor_options={**told.get("executor_options", {}), **options.executor_options})
        spec = spec_from_json(row["spec_body"])
        halted = "canceled" if row["state"] == "canceled" else row["reason"] or "ended" if collect_only else None
        # A run of the interactive tier has no other prices than its own.
        prices = {"interactive": told.get("interactive_prices"), row["tier"]: told.get("prices")}

        def open_lane(tier: Tier) -> Lane:
            return lane(spec, tier, options, None if prices.get(tier) is None else Prices.from_json(prices[tier]))

        mine = open_lane(row["tier"])
        if halted is None:
            if row["budget_usd"] is not None and mine.prices is None and mine.executor.paid:
                raise PriceUnknown.of(spec.model_name, row["tier"], spec.params)  # nothing would hold it to the budget
            _check(mine.executor, spec)
        validator = _from_portable(row["validator_body"])
        job = Job(
            ledger=ledger,
            lane=mine,
            open_lane=open_lane,
            spec=spec,
            spec_digest=row["spec"],
            validator=validator,
            validator_digest=row["validator"],
            run_id=run_id,
            job_id=row["job"],
            n_requests=row["n_requests"],
            n_skipped=row["n_skipped"],
            clock=clock or SystemClock(),
            owner="",
            is_gone=owner.gone,
            options=options,
            policy=policy_of(options),
            budget_usd=row["budget_usd"],
            halted=halted,
            poll_s=poll_s,
            deadline=None if told.get("deadline") is None else datetime.fromisoformat(told["deadline"]),
            lots=evidence.Family.of_run(row),
            canary=watch.restore(ledger, run_id, None if validator is None else validator.schema),
        )
        if halted is None:
            run_book.reopen(ledger, run_id)
        shown = reporter(progress)
        shown.began(ledger.path, new=False, paid=mine.executor.paid, warnings=_running_out(job))
        return cls(job, reporter=shown)

    # --- driving -----------------------------------------------------------------------------------------------

    def wait(self) -> Run:
        """Do the run's work until each request is final.

        Returns
        -------
        This run.

        Raises
        ------
        RunStopped
            One of its kinds, when sending was stopped; it carries this run and `.partial()`.
        KeyboardInterrupt
            Ctrl-C detaches: what becomes of what is under way, and how to go on here, is printed. An open batch goes on
            at its provider; a call is asked again.
        """
        if self._worker is not None:
            try:
                self._join_worker()
            except KeyboardInterrupt:
                goes_on = "this process goes on in the background until it ends"
                self._reporter.detached(self.id, self.ledger.path, under_way=goes_on)
                raise
        else:
            self._drive(wait=True)
        if self._job.halted is not None:
            raise RunStopped.because(self, self._job.halted, n_golden_apart=self._job.n_golden_apart)
        return self

    def advance(self) -> Run:
        """Do one pass of the run's work without waiting: collect what has ended, send what is due."""
        self._drive(wait=False)
        return self

    def _drive(self, *, wait: bool) -> None:
        job, shown = self._job, self._reporter
        job.tell = lambda snapshot: shown.tell(self._whole(snapshot))
        job.notify = shown.noticed
        job.progressed = lambda: engine.tell(job, engine.look_ahead(job)) if shown.due(job.clock.now()) else None
        try:
            with owner.acting() as name:
                job.owner = name
                engine.drive(job, wait=wait)
        except KeyboardInterrupt as interrupt:
            shown.detached(self.id, job.ledger.path, under_way=_under_way(job))
            raise type(interrupt)() from None  # what it interrupted is nobody's business
        finally:
            shown.finished()

    def _whole(self, snapshot: Snapshot) -> Snapshot:
        rows = {**snapshot.rows, "skipped": self._job.n_skipped} if self._job.n_skipped else snapshot.rows
        return replace(snapshot, rows=rows)

    def start(self) -> Run:
        """Begin the run's work and return at once: a batch is sent now, a local engine works in a thread."""
        if not self._job.lane.streams:
            return self.advance()

        def work() -> None:
            try:
                self._drive(wait=True)
            except BaseException as failure:  # told by wait(), in the caller's own thread
                self._failure = failure

        self._worker = threading.Thread(target=work, name=f"lotwise-{self.id}", daemon=True)
        self._worker.start()
        return self

    def _join_worker(self) -> None:
        assert self._worker is not None
        while self._worker.is_alive():
            self._worker.join(timeout=0.2)  # in slices, so that Ctrl-C reaches this thread
        self._worker = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    # --- asking ------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return where the run stands, from the ledger. Sends nothing and asks no provider."""
        return Status.of(self.ledger, self.id, paid=self._job.lane.executor.paid, now=self._job.clock.now())

    def collect(self, *, partial: bool = False) -> pl.DataFrame:
        """Return the input frame with its answers.

        Parameters
        ----------
        partial
            Take what there is; otherwise the run's work is done first, as by `wait`.

        Returns
        -------
        The input's rows in their order, with the columns that `map` adds. A run that was taken up by its id has no
        frame: it returns one row a request, by `llm_id`.
        """
        if not partial:
            self.wait()
        if self._call is None or self._frame is None or self._keys is None:
            return self._answers_alone()
        distinct = self._keys.drop_nulls().unique()
        answers = request_book.answers(self.ledger, distinct, self._call.validator.digest)
        labels = evidence.labels_of(self._frame, self._call.accept)
        known = what_rows_show(self.ledger, self._lots, self._keys, labels, answers, self._job.clock.now())
        return join.attach(self._frame, self._keys, answers, self._call, known)

    def _answers_alone(self) -> pl.DataFrame:
        validator = self._job.validator
        if validator is None:
            raise UnreachableAnswers.of(self.id)
        keys = run_book.manifest(self.ledger, self.id)
        answers = request_book.answers(self.ledger, keys, self._job.validator_digest)
        told = answers.select(llm_id="key", llm_state="state", llm_error="reason", llm_attempts="attempts")
        return pl.concat([told, validator.columns(answers["value"])], how="horizontal").sort("llm_id")

    def missing(self) -> pl.DataFrame:
        """Return every request without a valid answer.

        Returns
        -------
        `llm_id`, `llm_state`, `reason`, `attempts`, `due_at`: one row a distinct request, by `llm_id`.
        """
        return missing_of(self.ledger, self.id)

    @property
    def _lots(self) -> evidence.Family:
        assert self._job.lots is not None
        return self._job.lots

    def lots(self) -> pl.DataFrame:
        """Return what is known of the run's lots: the plan, what people saw, and what it proves.

        Returns
        -------
        `evidence.LOTS`, one row a lot. Lots whose requests are all final are closed and drawn from first.
        """
        evidence.close(self.ledger, self._lots, self._job.clock.now())
        return evidence.table(self.ledger, self._lots)

    def golden(self) -> pl.DataFrame:
        """Return what was expected of each golden row and what was answered.

        Returns
        -------
        `watch.GOLDEN_ANSWERS`, one row an asking: `llm_id`, `round` (0 before the gate, then as it rode in later
        shards), `input`, `expected` and `answered` (JSON), `agreed`, and `reason` where there is no valid answer. Empty
        without a golden set.
        """
        return watch.golden_answers(self.ledger, self._job.canary, self._job.validator_digest)

    def golden_series(self) -> pl.DataFrame:
        """Return how the golden rows that rode in later shards agreed with what is known.

        Returns
        -------
        `shard`, `sent_at`, `n`, `agreed`: one row a shard, in the order of sending. Empty without a golden set.
        """
        return watch.golden_series(self._job)

    def cancel(self) -> Run:
        """Stop the run: nothing more is sent, and open batches are canceled. What they finished is still collected.

        Notes
        -----
        One call to the provider an open batch. Finished rows stay billed; collect them with `wait` or `resume`.
        """
        with owner.acting() as name:
            self._job.owner = name
            engine.cancel(self._job)
        return self


def _running_out(job: Job) -> list[str]:
    """Warn of open shards whose results their provider keeps for less than five more days."""
    now, kept_s = job.clock.now(), job.lane.executor.limits.retention_s
    warnings = []
    for shard in shard_book.open_of(job.ledger, job.run_id, job.job_id):
        gone_at = lifecycle.retention_ends(shard["submitted_at"], kept_s)
        if gone_at is not None and gone_at - now < lifecycle.RETENTION_WARNING:
            warnings.append(
                f"the results of shard {shard['id']} can be read until {gone_at:%Y-%m-%d %H:%M} UTC only; collect them"
            )
    return warnings


def _under_way(job: Job) -> str:
    """Say what becomes of what is under way when this process leaves it."""
    batches = "open batches go on at the provider"
    if not job.lane.streams:
        return batches
    most = job.lane.in_flight
    again = "held until a retry of 'uncertain'" if job.policy.hold_uncertain else "asked again"
    calls = (
        "what was being answered is asked again"
        if most is None
        else f"calls under way, {most} at most, may be charged without an answer and are {again}"
    )
    return f"{batches}; {calls}" if job.turned else calls


def _stands(reason: str, options: Options) -> bool:
    """Say whether a stop of the same work before still holds: bad answers do, what waiting or money mends does not."""
    return reason.startswith("systemic:") and options.systemic_rate is not None


def at(deadline: datetime | timedelta, now: datetime) -> datetime:
    """Return the moment that a deadline means."""
    return deadline if isinstance(deadline, datetime) else now + deadline


def _check(executor: BatchExecutor | StreamExecutor, spec: Spec) -> None:
    """Refuse what can be known to fail before a run is taken up. A batch outlasts its provider's silence."""
    try:
        executor.check(spec)
    except Unreachable:
        if isinstance(executor, StreamExecutor):
            raise


def _executor_options(job: Job) -> dict[str, Mapping[str, Any]]:
    """Return what a later process needs to make the run's executor again."""
    executor = job.lane.executor
    kept = executor.kept_options() if isinstance(executor, KeepsOptions) else {}
    return {"executor_options": kept} if kept else {}


def _deadline_options(job: Job) -> dict[str, Any]:
    """Return what a later process needs to keep a run's deadline."""
    if job.deadline is None or job.lane.streams:
        return {}
    prices = job.lane_at("interactive").prices
    return {
        "deadline": job.deadline.isoformat(),
        "interactive_prices": None if prices is None else prices.to_json(),
    }


def _portable(validator: Validator) -> str | None:
    """Write a validator down for a process without the caller's code, where it needs none of it."""
    return None if validator.checks else validator.schema.portable()


def _from_portable(body: str | None) -> Validator | None:
    return None if body is None else Validator.of(Schema.from_portable(body))
