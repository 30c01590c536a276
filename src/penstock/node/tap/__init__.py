"""TAP as producer and as receiver.

In: connections that speak TAP. Out: state that outlives them (tap_state).
"""
