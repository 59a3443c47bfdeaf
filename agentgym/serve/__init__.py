"""The endpoint through which agent programs speak to a policy, in the dialects that they know. Extra: `serve`."""
