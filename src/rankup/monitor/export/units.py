"""The names that channels have outside of rankup: with their unit, as other tools expect it."""

from __future__ import annotations

GPU = {
    "util": "util_percent",
    "memory": "memory_bytes",
    "power": "power_watts",
    "temperature": "temperature_celsius",
    "clock": "sm_clock_mhz",
    "throttle": "throttle_bits",
    "throttle_power": "throttled_by_power_share",
    "throttle_heat": "throttled_by_heat_share",
    "throttle_hardware": "throttled_by_hardware_share",
    "pcie_rx": "pcie_rx_bytes_per_s",
    "pcie_tx": "pcie_tx_bytes_per_s",
    "nvlink": "nvlink_bytes_per_s",
    "processes": "processes",
}
HOST = {
    "cpu": "cpu_percent",
    "busiest": "busiest_core_percent",
    "load": "load",
    "memory": "memory_bytes",
    "cgroup": "cgroup_memory_bytes",
    "swap": "swap_bytes",
    "disk_read": "disk_read_bytes_per_s",
    "disk_write": "disk_write_bytes_per_s",
    "net_rx": "net_rx_bytes_per_s",
    "net_tx": "net_tx_bytes_per_s",
    "ib_rx": "infiniband_rx_bytes_per_s",
    "ib_tx": "infiniband_tx_bytes_per_s",
    "fs_read": "network_fs_read_bytes_per_s",
    "fs_write": "network_fs_write_bytes_per_s",
    "fs_operations": "network_fs_operations_per_s",
}
RANK = {
    "cpu": "cpu_percent",  # of one core
    "memory": "memory_bytes",
    "workers": "data_workers",
    "workers_cpu": "data_workers_cpu_percent",
    "read": "read_bytes_per_s",
    "write": "write_bytes_per_s",
}
FS = {
    "read": "read_bytes_per_s",
    "write": "write_bytes_per_s",
    "operations": "operations_per_s",
}
