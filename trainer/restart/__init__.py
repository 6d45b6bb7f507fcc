"""The only doors to NVRx's restart modules: in_process.py to `inprocess`, heartbeat.py to the rank monitor."""
