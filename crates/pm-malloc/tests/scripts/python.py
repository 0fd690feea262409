import hashlib, json, os, re
data = {str(i): {'n': i, 'text': 'x' * (i % 500), 'list': list(range(i % 20))} for i in range(6000)}
text = json.dumps(data, sort_keys=True)
assert json.loads(text) == data
print(len(text), hashlib.sha256(text.encode()).hexdigest())
buffer = bytearray()
for i in range(50000): buffer += b'%d,' % i
print(hashlib.sha256(buffer).hexdigest(), len(re.findall(rb'77', buffer)))
for n in range(3):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, hashlib.sha256(repr(sorted(data)[n::7]).encode()).hexdigest().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print(os.read(read, 100).decode())
