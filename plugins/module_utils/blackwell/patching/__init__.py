"""Patches of installed Python sources as managed objects.

``definition`` says what a patch is, ``syntax`` and ``edits`` find its place and make its lines, ``hunks``
is the form in which it stands in a file, ``installation`` finds the files, ``transaction`` writes them, and
``engine`` knows the state of every patch and leads from there to the wanted one.
"""
