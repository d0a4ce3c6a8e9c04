from punica_serve.cli.up.on_ray.nodes import RayNodes, next_nodes, runner_id
from punica_serve.protocol import ScaleAdvice

NODES = {"a", "b"}
NONE = ScaleAdvice()


def follow(fleet: RayNodes, alive: set[str], advice: ScaleAdvice = NONE, num_gpus: int = 0) -> RayNodes:
    return next_nodes(fleet, alive, advice, num_gpus=num_gpus, gpus_per_runner=2)


def releasing(*nodes: str) -> ScaleAdvice:
    return ScaleAdvice(releasable_runners=tuple(map(runner_id, nodes)))


def test_every_node_gets_a_runner() -> None:
    assert follow(RayNodes(), NODES) == RayNodes(running=frozenset(NODES), num_wanted=2)


def test_a_node_that_is_gone_is_forgotten_and_not_asked_for_again() -> None:
    assert follow(follow(RayNodes(), NODES), {"b", "c"}) == RayNodes(running=frozenset("bc"), num_wanted=2)
    assert follow(follow(RayNodes(), NODES), {"b"}) == RayNodes(running=frozenset("b"), num_wanted=1)


def test_more_gpus_are_more_nodes_rounded_up() -> None:
    fleet = follow(RayNodes(), NODES)
    assert follow(fleet, NODES, ScaleAdvice(num_more_gpus=1), num_gpus=4).num_wanted == 3
    assert follow(fleet, NODES, ScaleAdvice(num_more_gpus=3), num_gpus=4).num_wanted == 4


def test_a_runner_that_has_not_joined_yet_is_what_was_advised_and_not_on_top_of_it() -> None:
    fleet = follow(RayNodes(), NODES | {"c"}, ScaleAdvice(num_more_gpus=1), num_gpus=4)
    assert fleet == RayNodes(running=frozenset("abc"), num_wanted=3)


def test_an_emptied_node_is_released_and_stays_so_without_new_advice() -> None:
    released = follow(follow(RayNodes(), NODES), NODES, releasing("a"), num_gpus=4)
    assert released == RayNodes(running=frozenset("b"), released=frozenset("a"), num_wanted=1)
    assert follow(released, NODES, num_gpus=2) == released
    assert follow(released, {"b"}, num_gpus=2) == RayNodes(running=frozenset("b"), num_wanted=1)


def test_a_released_node_that_still_lives_is_the_first_of_more() -> None:
    released = follow(follow(RayNodes(), NODES), NODES, releasing("a"), num_gpus=4)
    assert follow(released, NODES, ScaleAdvice(num_more_gpus=2), num_gpus=2) == RayNodes(
        running=frozenset(NODES), num_wanted=2
    )
    assert follow(released, NODES, ScaleAdvice(num_more_gpus=4), num_gpus=2) == RayNodes(
        running=frozenset(NODES), num_wanted=3
    )
