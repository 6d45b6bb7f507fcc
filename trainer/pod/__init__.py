"""What PID 1 of a pod does: what it knows (pod), how it watches one launcher (watch), what the control pod and a worker
pod do around that (control, worker), and with which code it ends (verdict).
"""
