"""Remote environments behind the interfaces of other libraries, one file for each."""
