from pathlib import Path

from punica_serve.simulation.timeline import Timeline, draw, write_csv

TIMELINE = Timeline(
    interval_s=10.0,
    requests_per_s=[1.0, 2.5],
    tokens_per_s=[100.0, 250.0],
    queue_length=[0, 3],
    batch_sizes={"SIM-0": [0.0, 4.0], "SIM-1": [31.25, 32.0]},
    max_batch_size=32,
)


def test_the_table_has_a_row_for_each_interval(tmp_path: Path) -> None:
    assert write_csv(TIMELINE, tmp_path / "table.csv").read_text().splitlines() == [
        "time_s,requests_per_s,tokens_per_s,queue_length,batch_size_0,batch_size_1",
        "0,1,100,0,0,31.25",
        "10,2.5,250,3,4,32",
    ]


def test_pictures_have_a_column_for_each_timeline(tmp_path: Path) -> None:
    from matplotlib.image import imread

    one = imread(draw({"simulated": TIMELINE}, tmp_path / "one.png", title="one"))
    two = imread(draw({"live": TIMELINE, "simulated": TIMELINE}, tmp_path / "two.png", title="two"))
    assert two.shape[0] == one.shape[0]
    assert two.shape[1] == 2 * one.shape[1]
