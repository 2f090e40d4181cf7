"""What the operator's pages read about this gateway and all gateways of its database, and the row that says which release this gateway runs."""

import platform
from collections.abc import Callable, Iterable, Sequence

from tollway import __version__
from tollway.app.doctor_findings import SHARED_RATES_DOWN, describe_late_tasks, find_local_risks
from tollway.app.observation import read_network_nodes
from tollway.chain.rpc import RpcReader
from tollway.config.settings import Settings
from tollway.observability.fleet import DutyLeader, GatewayBuild, GatewayRecord
from tollway.observability.recent_metrics import MetricsSample, RecentMetrics
from tollway.observability.telemetry import BackgroundTaskStatus, Metrics
from tollway.storage.engine.database import Database, is_postgres
from tollway.storage.engine.leadership import Duty, find_leaders
from tollway.storage.engine.migrate import list_revisions
from tollway.storage.operator.operator_reads import FleetFiguresStore, GatewayBuildStore
from tollway.web.operator.chains import NetworkNodes


class FleetView:
    """The reader of one gateway. `owner_id`: of its lease. `is_shared_rates_up`: None without a rate server."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        owner_id: str,
        chains: RpcReader,
        metrics: Metrics,
        recent_metrics: RecentMetrics,
        figures: FleetFiguresStore,
        read_background: Callable[[], Iterable[BackgroundTaskStatus]],
        is_shared_rates_up: Callable[[], bool] | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._database = database
        self.owner_id = owner_id
        self._chains = chains
        self._metrics = metrics
        self._recent_metrics = recent_metrics
        self.figures = figures
        self._read_background = read_background
        self._is_shared_rates_up = is_shared_rates_up
        lease_ms = int(settings.limits.owner_lease_s * 1000)
        self._builds = GatewayBuildStore(database, owner_id=owner_id, lease_ms=lease_ms, now_ms=now_ms)
        self._build = GatewayBuild(
            name=f"{platform.node()}:{settings.listen.port}",
            version=__version__,
            schema=list_revisions()[0],
        )
        self._duties: set[Duty] = set()

    async def record_build(self) -> None:
        await self._builds.record(self._build)

    def note_leading(self, duty: Duty, is_leading: bool) -> None:
        if is_leading:
            self._duties.add(duty)
        else:
            self._duties.discard(duty)

    async def list_gateways(self) -> tuple[GatewayRecord, ...]:
        return await self._builds.list_gateways()

    async def find_leaders(self) -> tuple[DutyLeader, ...]:
        """The leader of each duty, from the locks of PostgreSQL. With SQLite there is one gateway, and it knows what it leads."""
        if not is_postgres(self._database):
            return tuple(
                DutyLeader(duty=duty.label, is_led=duty in self._duties, owner_id=self.owner_id)
                for duty in Duty
            )
        leaders = await find_leaders(self._database)
        return tuple(
            DutyLeader(
                duty=duty.label,
                is_led=duty in leaders,
                owner_id=leaders[duty].owner_id if duty in leaders else None,
            )
            for duty in Duty
        )

    def list_nodes(self) -> tuple[NetworkNodes, ...]:
        return tuple(
            read_network_nodes(self._chains, self._metrics, network.rules.chain_id)
            for network in self._settings.networks
        )

    def find_increase(self, window_s: float) -> MetricsSample:
        return self._recent_metrics.find_increase(window_s)

    async def find_risks(self) -> Sequence[str]:
        """Returns the warnings of doctor as sentences."""
        found = [finding.detail for finding in await find_local_risks(self._settings, self._database)]
        found += [f"background task {late}" for late in describe_late_tasks(self._read_background())]
        if self._is_shared_rates_up is not None and not self._is_shared_rates_up():
            found.append(SHARED_RATES_DOWN)
        return found
