"""Writes ten clicks a second, until Ctrl-C: python produce.py redis://127.0.0.1:7000"""

import json
import random
import sys
import time

import redis

PAGES = ["/", "/pricing", "/docs", "/docs/streams", "/blog"]


def main(url: str) -> None:
    client = redis.Redis.from_url(url)
    while True:
        page = random.choice(PAGES)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        click = {"at": at, "page": page, "user": random.randrange(100), "ms": random.randrange(20, 2000)}
        client.execute_command("TWRITE", "clicks", page, json.dumps(click))
        time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        pass
    except redis.ConnectionError as error:
        sys.exit(f"no server answers: {error}")
