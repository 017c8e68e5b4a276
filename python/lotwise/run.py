"""A run's handle: begin one from a frame, take one up by its id, and ask it how it stands.

A run is the ledger's; the handle holds no state of its own that matters. Closing the process loses nothing: the same
call, or `open_ledger(path).resume(run_id)`, goes on where the ledger says things are.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from lotwise import engine, join, lifecycle, owner, reconcile, watch
from lotwise import lots as evidence
from lotwise.call import Call, executor_options, policy_of
from lotwise.clock import Clock, SystemClock
from lotwise.cost import Prices
from lotwise.errors import LotwiseError, RunStopped, SystemicError, UnknownRun, UnreachableAnswers
from lotwise.executors import load
from lotwise.executors.base import BatchExecutor
from lotwise.job import Job, Options, Snapshot
from lotwise.key import KEY_VERSION, spec_from_json, spec_json
from lotwise.ledger import golden as golden_book
from lotwise.ledger.files import DATABASE, locate
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import RequestState, ShardState
from lotwise.progress import Reporter, reporter
from lotwise.schema import Schema
from lotwise.shown import shown as what_rows_show
from lotwise.validate import Validator

_OPEN = ("pending", "submitted")

_UNSENT = (ShardState.PLANNED, ShardState.INTENDED, ShardState.LOST, ShardState.REJECTED)
"""Where the provider has taken nothing of a shard."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a run stands.

    Attributes
    ----------
    run_id, name, model, ledger
        Which run it is, and where it is written down.
    state
        open, done, stopped or canceled.
    reason
        Why it was stopped; None when it was not.
    n_rows, n_skipped, n_requests
        Rows of the frame, rows that ask for nothing, and distinct requests.
    requests, rows
        Distinct requests and rows by state.
    shards
        Shards made for this work by state.
    n_sent
        Requests that this very call sent, repeats included; the rest was in the ledger or went with another call.
    n_golden
        Golden rows that this very call asked besides; they are in no other count.
    reserved_usd, cost_usd
        What open shards may still cost, and what collected ones did cost; None where no price is known.
    notices
        What the work was told of at once: the canary's verdict, a risen rate of invalid answers, a changed model
        revision, drift of the golden rows, each with the shard at which it began.
    created_at, ended_at
        When the run was written down, and when it ended.
    """

    run_id: str
    name: str | None
    model: str
    ledger: str
    state: str
    reason: str | None
    n_rows: int
    n_skipped: int
    n_requests: int
    requests: Mapping[str, int]
    rows: Mapping[str, int]
    shards: Mapping[str, int]
    n_sent: int
    n_golden: int = 0
    reserved_usd: Decimal | None
    cost_usd: Decimal | None
    notices: tuple[str, ...] = ()
    created_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, ledger: Ledger, run_id: str, *, paid: bool | None = None) -> Status:
        """Read where a run stands from the ledger. Sends nothing, asks no provider, and changes nothing.

        Parameters
        ----------
        paid
            Whether its executor can cost money; None to find out from the model's name.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        row = _row(ledger, run_id)
        counts = ledger.counts(run_id, row["validator"])
        rows = {state: n for state, (_, n) in counts.items()}
        if row["n_skipped"]:
            rows["skipped"] = row["n_skipped"]
        shards: dict[str, int] = {}
        n_sent, reserved, cost, unpriced = 0, Decimal(0), Decimal(0), False
        for shard in ledger.shards(row["job"]):
            state = shard["state"]
            shards[state] = shards.get(state, 0) + 1
            if shard["run"] == run_id and state not in _UNSENT:
                n_sent += shard["n_requests"]
            if state == ShardState.COLLECTED:
                unpriced |= shard["cost_usd"] is None
                cost += shard["cost_usd"] or 0
            elif state not in (ShardState.LOST, ShardState.REJECTED):
                unpriced |= shard["reserved_usd"] is None
                reserved += shard["reserved_usd"] or 0
        n_golden = golden_book.n_sent(ledger, run_id)
        priced = not unpriced or not (_is_paid(row["model"]) if paid is None else paid)
        return cls(
            run_id=run_id,
            name=row["name"],
            model=row["model"],
            ledger=str(ledger.path),
            state=row["state"],
            reason=row["reason"],
            n_rows=row["n_rows"],
            n_skipped=row["n_skipped"],
            n_requests=row["n_requests"],
            requests={state: n for state, (n, _) in counts.items()},
            rows=rows,
            shards=shards,
            n_sent=n_sent - n_golden,
            n_golden=n_golden,
            reserved_usd=reserved if priced else None,
            cost_usd=cost if priced else None,
            notices=tuple(one["text"] for one in golden_book.notices(ledger, row["job"])),
            created_at=row["created_at"],
            ended_at=row["ended_at"],
        )

    @property
    def n_open(self) -> int:
        """Requests that are not final."""
        return sum(self.requests.get(state, 0) for state in _OPEN)

    def __str__(self) -> str:
        from lotwise import text

        return text.status(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from lotwise import html

        return html.status(self)


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
        run_id, job_id = engine.new_run_id(), engine.job_digest(call.spec_digest, enrolled.manifest)
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
            executor=call.executor,
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
            prices=call.prices,
            poll_s=call.poll_s,
            lots=family,
            canary=call.canary(enrolled.manifest.height),
        )
        if job.canary is not None:
            watch.begin(job, job.canary)
        stopped = ledger.stop_reason(job.job_id)
        ledger.begin_run(
            run={
                "id": job.run_id,
                "name": call.name,
                "spec": call.spec_digest,
                "validator": call.validator.digest,
                "job": job.job_id,
                "tier": call.tier,
                "options": json.dumps(
                    {"prices": None if call.prices is None else call.prices.to_json(), "lots": family.to_json()}
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
            run._reopen(call.retry)
        elif stopped is not None and _stands(stopped[1], call.options):
            job.halt(stopped[1])  # a stop for bad answers holds until the call says otherwise
        return run

    def _reopen(self, words: tuple[str, ...]) -> None:
        """Open another attempt of what has ended in one of the named states or with one of the named codes."""
        missing = self.ledger.missing(self.id, self._job.validator_digest)
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
                self.ledger.reopen(ended["key"], origin, f"retry:{word}")

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

        With `collect_only`, and for a canceled run, what is in flight is collected and nothing is sent.

        A schema that is a Pydantic model, and a `check=` that is a function, live in the caller's code; without them
        answers are recorded as they come and judged by the next `map` of the same call.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        row = _row(ledger, run_id)
        options = options or Options()
        spec = spec_from_json(row["spec_body"])
        executor, _ = load(spec.model_name, tier=row["tier"], options=executor_options(spec.model_name, options))
        halted = "canceled" if row["state"] == "canceled" else row["reason"] or "ended" if collect_only else None
        if halted is None:
            ledger.reopen_run(run_id)
        prices = json.loads(row["options"]).get("prices")
        validator = _from_portable(row["validator_body"])
        job = Job(
            ledger=ledger,
            executor=executor,  # type: ignore[arg-type]  # `load` returns one of the two shapes
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
            prices=None if prices is None else Prices.from_json(prices),
            halted=halted,
            poll_s=poll_s,
            lots=evidence.Family.of_run(row),
            canary=watch.restore(ledger, run_id, None if validator is None else validator.schema),
        )
        shown = reporter(progress)
        shown.began(ledger.path, new=False, paid=executor.paid, warnings=_running_out(job))
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
            Ctrl-C detaches: what is in flight goes on at the provider, and how to go on here is printed.
        """
        if self._worker is not None:
            try:
                self._join_worker()
            except KeyboardInterrupt:
                self._reporter.detached(self.id, self.ledger.path)
                raise
        else:
            self._drive(wait=True)
        if self._job.halted is not None:
            raise RunStopped.because(self, self._job.halted)
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
        except KeyboardInterrupt:
            shown.detached(self.id, job.ledger.path)
            raise KeyboardInterrupt from None  # what it interrupted is nobody's business
        finally:
            shown.finished()

    def _whole(self, snapshot: Snapshot) -> Snapshot:
        rows = {**snapshot.rows, "skipped": self._job.n_skipped} if self._job.n_skipped else snapshot.rows
        return Snapshot(
            counts=snapshot.counts,
            rows=rows,
            phases=snapshot.phases,
            elapsed_s=snapshot.elapsed_s,
            note=snapshot.note,
        )

    def start(self) -> Run:
        """Begin the run's work and return at once: a batch is sent now, a local engine works in a thread."""
        if isinstance(self._job.executor, BatchExecutor):
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
        return Status.of(self.ledger, self.id, paid=self._job.executor.paid)

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
        answers = self.ledger.answers(distinct, self._call.validator.digest)
        labels = evidence.labels_of(self._frame, self._call.accept)
        known = what_rows_show(self.ledger, self._lots, self._keys, labels, answers, self._job.clock.now())
        return join.attach(self._frame, self._keys, answers, self._call, known)

    def _answers_alone(self) -> pl.DataFrame:
        validator = self._job.validator
        if validator is None:
            raise UnreachableAnswers.of(self.id)
        keys = self.ledger.manifest(self.id)
        answers = self.ledger.answers(keys, self._job.validator_digest)
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
        job, now = self._job, self._job.clock.now()
        self.ledger.end_run(self.id, "canceled", "canceled", now)
        job.halt("canceled")
        if not isinstance(job.executor, BatchExecutor):
            return self
        with owner.acting() as name:
            job.owner = name
            for shard in self.ledger.open_shards(self.id, job.job_id):
                if shard["run"] == self.id:
                    reconcile.cancel(job, shard)
        return self


def _running_out(job: Job) -> list[str]:
    """Warn of open shards whose results their provider keeps for less than five more days."""
    now, kept_s = job.clock.now(), job.executor.limits.retention_s
    warnings = []
    for shard in job.ledger.open_shards(job.run_id, job.job_id):
        gone_at = lifecycle.retention_ends(shard["submitted_at"], kept_s)
        if gone_at is not None and gone_at - now < lifecycle.RETENTION_WARNING:
            warnings.append(
                f"the results of shard {shard['id']} can be read until {gone_at:%Y-%m-%d %H:%M} UTC only; collect them"
            )
    return warnings


def missing_of(ledger: Ledger, run_id: str) -> pl.DataFrame:
    """Return every request of a run without a valid answer, as `Run.missing` does."""
    found = ledger.missing(run_id, _row(ledger, run_id)["validator"])
    state = (
        pl.when(pl.col("sending_state") == RequestState.ANSWERED.value)
        .then(pl.lit("invalid"))
        .otherwise(pl.col("sending_state"))
    )
    return found.select(llm_id="key", llm_state=state, reason="reason", attempts="attempts", due_at="due_at")


def _row(ledger: Ledger, run_id: str) -> dict[str, Any]:
    row = ledger.run(run_id)
    if row is None:
        raise UnknownRun.of(run_id, ledger.runs()["id"].to_list())
    return row


def _is_paid(model: str) -> bool:
    """Say whether a model can cost money; one that cannot be loaded here may."""
    try:
        executor, _ = load(model)
    except LotwiseError:
        return True
    return executor.paid


def _stands(reason: str, options: Options) -> bool:
    """Say whether a stop of the same work before still holds: bad answers do, what waiting or money mends does not."""
    return reason.startswith("systemic:") and options.systemic_rate is not None


def _portable(validator: Validator) -> str | None:
    """Write a validator down for a process without the caller's code, where it needs none of it."""
    return None if validator.checks else validator.schema.portable()


def _from_portable(body: str | None) -> Validator | None:
    return None if body is None else Validator.of(Schema.from_portable(body))


__all__ = ["Run", "Status", "SystemicError"]
