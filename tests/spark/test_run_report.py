"""What a run tells its server of itself, for the console."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.replication.plain_shards import PlainShard

import penstock
from penstock.protocol.pipelines import KEY, PipelineReport
from penstock.spark.run_report import RunReport


@pytest.mark.parametrize("settings", ["", "?delivery=at-most-once&socket_timeout=5&decode_responses=yes"])
def test_a_run_on_a_shard_tells_its_leader_what_became_of_it(tmp_path: Path, settings: str) -> None:
    with PlainShard(tmp_path / "shard", 2) as shard, penstock.Client.from_url(shard.url) as client:
        client.set("ready", 1)  # a report that takes two seconds is given up, and a new shard may take longer
        with RunReport(shard.url + settings, "clicks", tmp_path):
            pass
        (told,) = client.hgetall(KEY).values()
        report = PipelineReport.decode(told)
    assert (report.name, report.state) == ("clicks", "done")
