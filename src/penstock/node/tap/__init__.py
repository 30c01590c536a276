"""TAP as producer and as receiver.

In: connections with the dialect TAP. Out: state that outlives them (tap_state).
"""
