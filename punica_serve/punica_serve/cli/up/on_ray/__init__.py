"""`punica-serve up --ray`: the same processes, placed and restarted by Ray, with one runner on each of its nodes.

    plan            the roles, and the resources that each reserves: pure, as is
    nodes           which nodes should have a runner
    process_actor   the actor, which keeps the ordinary process of its role running
    processes       that process's command line and files
    scheduler_file  the scheduler's current address, for the others to connect to
    placed_actor    actors in placement groups; tracked_actor: where Ray has put them
    runners         an actor on each node that should have a runner
    serve           the main loop of `up`

Ray places and restarts processes; tokens never pass through it, but use our own websockets. Nothing outlives `up`: its
actors end with it, and their processes with them.
"""
