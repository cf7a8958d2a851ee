"""`dm-env-rpc play`: an environment in a terminal, as a Textual application.

Needs the extra `play`.
"""

# Read `play` and `app` first: the command, and the application, which shows the game and handles
# keys. `player` steps the environment, in another thread. `controls` and `panel` map keys to
# actions. `pictures` finds the pictures among observations, `blocks` draws them with characters,
# and `view` shows them with characters or as images.
