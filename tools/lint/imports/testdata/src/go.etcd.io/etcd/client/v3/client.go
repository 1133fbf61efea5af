package clientv3
