"""Byte transcripts: the messages between clients and servers in some 200 scenarios.

A relay between both ends writes down what passes (`tap.py`), `canonical.py` takes out of it what
differs from run to run, and `recorded` has the result, which each commit is compared with. So a
change of the code that is to change no message shows that it changes none.
"""

# `scene.py` is what a scenario gets, and runs it; `scenarios` has the scenarios, by subject. Of the
# package, only its generated messages are used outside the scenarios: the net has to hold while
# transports, codecs and recordings are rewritten.
