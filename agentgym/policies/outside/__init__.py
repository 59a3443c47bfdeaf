"""Policies that other people's servers hold: what is asked, what is answered, and how an episode is played with one."""
