"""`punica-serve up --ray`: the same processes, placed and restarted by Ray, one runner on each of its nodes.

    plan            the roles, and what each reserves of a node: pure, as is
    fleet           which nodes are to have a runner
    member          the actor: keeps the ordinary process of its role running beside it
    processes       that process's command line and files
    scheduler_file  where the scheduler is now, for the others to dial
    seats           actors in placement groups; placed: where Ray has put them
    runners         a seat on each node, following the fleet
    serve           the loop of `up`

Ray places and restarts; tokens never pass through it, but flow over our own websockets. Nothing outlives `up`: its
actors end with it, and their processes with them.
"""
