
è
<
%/job:ps/replica:0/task:0/device:CPU:0
read0ÄÄ˘¿¡ƒÇ(Ë
¬
)/job:worker/replica:0/task:0/device:CPU:0î

RecvTensorËá˘¿¡ƒÇ(êN:"ËBq[1000B] [1.0Mb/s] weight0 from /job:ps/replica:0/task:0/device:CPU:0 to /job:worker/replica:0/task:0/device:CPU:0
D
)/job:worker/replica:0/task:0/device:CPU:0
	gradient0†ú˙¿¡ƒÇ(êN
æ
%/job:ps/replica:0/task:0/device:CPU:0î

RecvTensor∞Í˙¿¡ƒÇ(êN:"ËBq[1000B] [1.0Mb/s] update0 from /job:worker/replica:0/task:0/device:CPU:0 to /job:ps/replica:0/task:0/device:CPU:0
=
%/job:ps/replica:0/task:0/device:CPU:0
apply0¿∏˚¿¡ƒÇ(†
√
)/job:worker/replica:0/task:0/device:CPU:0ï

RecvTensorÄÄ˘¿¡ƒÇ(:"¸ˇˇˇˇˇˇˇˇBk[-4B] [1.0Mb/s] odd from /job:ps/replica:0/task:0/device:CPU:0 to /job:worker/replica:0/task:0/device:CPU:0ä
>
read0ReadVariableOp"%/job:ps/replica:0/task:0/device:CPU:0
—
weight0/send_Sendread0"%/job:ps/replica:0/task:0/device:CPU:0*:
recv_device+)/job:worker/replica:0/task:0/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_name	weight0
 
update0/recv_Recv"%/job:ps/replica:0/task:0/device:CPU:0*6
recv_device'%/job:ps/replica:0/task:0/device:CPU:0*:
send_device+)/job:worker/replica:0/task:0/device:CPU:0*
tensor_name	update0
[
apply0ResourceApplyGradientDescentupdate0/recv"%/job:ps/replica:0/task:0/device:CPU:0
…
odd/send_Sendread0"%/job:ps/replica:0/task:0/device:CPU:0*:
recv_device+)/job:worker/replica:0/task:0/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_nameoddƒ
Œ
weight0/recv_Recv")/job:worker/replica:0/task:0/device:CPU:0*:
recv_device+)/job:worker/replica:0/task:0/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_name	weight0
L
	gradient0MatMulweight0/recv")/job:worker/replica:0/task:0/device:CPU:0
Ÿ
update0/send_Send	gradient0")/job:worker/replica:0/task:0/device:CPU:0*6
recv_device'%/job:ps/replica:0/task:0/device:CPU:0*:
send_device+)/job:worker/replica:0/task:0/device:CPU:0*
tensor_name	update0
∆
odd/recv_Recv")/job:worker/replica:0/task:0/device:CPU:0*:
recv_device+)/job:worker/replica:0/task:0/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_nameodd