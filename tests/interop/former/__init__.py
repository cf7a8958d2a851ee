"""The package as it was before the last change of what batches and infos look like on the wire.

Its clients and servers run in processes of their own, and its recordings are kept in
`tests/recording/former`. `version.py` takes it from the history of the checkout.
"""
