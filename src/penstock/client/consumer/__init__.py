"""Members of a group that acknowledge what they have done: iterate, or hand over a function and a number of workers.

    with client.consumer("orders", "kitchen") as orders:
        for message in orders:
            cook(message)                  # done: acknowledged. An exception: given back, and raised

    client.consumer("orders", "kitchen").run(cook, workers=4)      # an exception gives the message back

A message is acknowledged after the body has come to its end, together with others that are done. What is lost on the
way (the program, the acknowledgement) is delivered again, so the body must bear to see a message twice.

    options     what a consumer is told: ConsumerSettings, Backoff, GIVE_UP
    core        the steps of workers and of the keeper, without I/O
    orders      the commands; sender: how they are repeated; outages: a server that does not answer
    steps       what a core asks of its driver
    queues      what is fetched and not begun; worker_share: what is begun together; pace: how much of both
    delivered   a message with its attempts, that can be acknowledged; holdings: all that are held, and their leases
    sync, aio   threads and tasks that carry the steps out; handlers: how the body is called
    follow      a stream from an offset that the caller keeps, in a transaction of its own
"""
