"""What a program needs of Python and the operating system, whatever protocol it speaks.

Imports nothing but the standard library and `errors`.
"""
