"""Starts jobs.  Run by launch/local.sh; not a part of the installed package."""
