import faulthandler, sys, time, collections, contextlib, tempfile, pathlib, os
import logging

logging.disable(logging.CRITICAL)
import warnings

warnings.simplefilter("ignore")
from tests.travelling.told import difference
from tests.travelling.environments.all import HABITS
from tests.travelling.ways.all import WAYS
from tests.travelling.documented import expected_in
from tests.travelling.ways.places import Places

stack = contextlib.ExitStack()
places = Places(stack, pathlib.Path(tempfile.mkdtemp()))
ways, habits = [each.split("|") if each else None for each in (*sys.argv[1:], "", "")[:2]]
spent = collections.Counter()
start = time.time()
for way, each in WAYS.items():
    if ways and way not in ways:
        continue
    for name, habit in each.habits.items():
        if habits and name not in habits:
            continue
        faulthandler.dump_traceback_later(1200, exit=True)
        t = time.process_time()
        try:
            exp = expected_in(way, name, each.expected(habit), habit.calls)
            found = each.play(places, name, habit.calls)
        except Exception as e:
            import traceback

            print(
                f"{way} | {name} | CRASH {type(e).__name__}: {e} {traceback.format_exc()[-700:]}",
                flush=True,
            )
            continue
        spent[way] += time.process_time() - t
        if len(found) != len(exp):
            print(f"{way} | {name} | LENGTH {found} {exp}")
            continue
        for row in range(len(found)):
            d = difference(found[row], exp[row])
            if d:
                print(f"{way} | {name} | row {row} {d[:500]}", flush=True)
                break
print(spent, sum(spent.values()), time.time() - start, time.process_time())
os._exit(0)
