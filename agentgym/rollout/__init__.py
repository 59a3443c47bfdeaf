"""Plays one episode and one group of episodes: turns, limits and scoring, without torch."""
