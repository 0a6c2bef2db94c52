"""`penstock console`: the server in a browser.

The console is a process of its own and an ordinary client. Every browser session has a login of its own at the server,
so the server's users and their permissions are those of the console, and the console has no way around them.
"""
